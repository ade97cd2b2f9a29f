package shop;

import javax.persistence.*;
import org.hibernate.annotations.GenericGenerator;
import org.hibernate.annotations.Parameter;

@Entity
@Table(name = "orders")
public class Order {
    @Id
    @GeneratedValue(generator = "orders")
    @GenericGenerator(name = "orders", strategy = "shop.LeafIds", parameters = @Parameter(name = "tag", value = "orders"))
    public Long id;

    public String item;

    public Order() {}

    public Order(String item) {
        this.item = item;
    }
}
